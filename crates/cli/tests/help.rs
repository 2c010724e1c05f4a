//! What every command says of itself. After a change: `TRYCMD=overwrite cargo test -p outbox-cli --test
//! help`, and read the difference.

#[test]
fn every_command_explains_itself() {
    trycmd::TestCases::new().case("tests/help/*.md");
}
