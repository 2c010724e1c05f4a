// Enqueues as `docs/any-language.md` shows it: produce.mjs EXAMPLE TRANSACTIONS.
//
// Transaction n has two messages of one key. Every third one is rolled back, and says so in its type.

const [, , example, transactions] = process.argv;
const { connect, enqueue } = await import(example);
const connection = await connect();
for (let n = 0; n < Number(transactions); n += 1) {
  const undone = n % 3 === 0;
  await connection.query('BEGIN');
  for (const part of ['a', 'b']) {
    const payload = `node/${String(n).padStart(4, '0')}/${part}`;
    const type = undone ? 'undone' : 'kept';
    await enqueue(connection, 'orders', `kůň-${n % 8}`, type, payload, { n: String(n) });
  }
  await connection.query(undone ? 'ROLLBACK' : 'COMMIT');
}
await connection.end();
