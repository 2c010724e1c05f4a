# shellcheck shell=bash
# Owns how Debian packages get onto the machine: as root, or through sudo when it asks for no
# password; otherwise it says what to type. Needs `die` from servers.sh.

install_packages() { # PACKAGE…
  local by_hand="apt-get install --no-install-recommends $*"
  local -a as_root=()
  if ! type -P apt-get >/dev/null; then
    die 3 "needs what Debian and Ubuntu call: $* (there is no apt-get here to install it)"
  fi
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || die 3 "needs packages that are not installed; as root, run: $by_hand"
    as_root=(sudo -n)
  fi
  echo "${0##*/}: $by_hand" >&2
  local status=0
  (
    # Files are the only way to ask for no cluster and no service, and they must be gone afterwards: what
    # happens at the user's own `apt-get install` is none of our business.
    made=() file=
    trap 'for file in "${made[@]}"; do
      "${as_root[@]}" rm -f "$file"
      "${as_root[@]}" rmdir --ignore-fail-on-non-empty "${file%/*}"
    done' EXIT
    if [[ " $* " == *" postgresql "* ]]; then
      made+=(/etc/postgresql-common/createcluster.d/outbox-tests.conf)
      "${as_root[@]}" mkdir -p "${made[-1]%/*}"
      echo 'create_main_cluster = false' | "${as_root[@]}" tee "${made[-1]}" >/dev/null
    fi
    if [[ ! -e /usr/sbin/policy-rc.d ]]; then
      made+=(/usr/sbin/policy-rc.d)
      printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "${made[-1]}" >/dev/null
      "${as_root[@]}" chmod 755 "${made[-1]}"
    fi
    # In a session of its own, the terminal's Ctrl-C cannot stop it halfway through a package.
    "${as_root[@]}" apt-get -q update &&
      "${as_root[@]}" setsid -w env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
  ) >&2 || status=$?
  ((status == 0)) || die 3 "could not install packages; as root, run: $by_hand"
}
