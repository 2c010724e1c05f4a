# shellcheck shell=bash
# Owns how packages of other languages get into the cache: in fixed versions, and never half. Needs
# `unpacked_cache` from servers.sh.

packages_limit_seconds=300

# Where a language's packages belong: other versions go elsewhere.
packages_folder() { # LANGUAGE PACKAGE…
  local language=$1
  shift
  echo "$(unpacked_cache)/$language-$(printf '%s\n' "$@" | sha256sum | cut -c 1-12)"
}

# Runs the steps of an installation in a new folder, which then takes its place all at once.
install_into() { # FOLDER FUNCTION ARGUMENTS…
  local folder=$1 new=$1.new.$$ function=$2
  shift 2
  mkdir -p "$new"
  if ! "$function" "$new" "$@" >"$new.log" 2>&1; then
    tail -n 5 "$new.log" >&2
    rm -rf -- "$new" "$new.log"
    return 1
  fi
  rm -f -- "$new.log"
  # Somebody else may have been quicker.
  mv -T "$new" "$folder" 2>/dev/null || rm -rf -- "$new"
}

install_node_packages() { # FOLDER PACKAGE…
  local folder=$1
  shift
  echo '{ "private": true }' >"$folder/package.json" &&
    timeout "$packages_limit_seconds" npm install --prefix "$folder" --no-audit --no-fund "$@"
}

# Prints where packages for Node are, or why they cannot be had.
node_modules() { # PACKAGE…
  local folder version
  folder=$(packages_folder node "$@")
  if ! type -P node >/dev/null || ! type -P npm >/dev/null; then
    echo "node and npm are not installed"
    return 1
  fi
  version=$(node --version)
  version=${version#v}
  if ((${version%%.*} < 20)); then
    echo "node is $version, and 20 is needed"
    return 1
  fi
  [[ -d $folder ]] || install_into "$folder" install_node_packages "$@" ||
    { echo "${*%@*} could not be installed" && return 1; }
  echo "$folder/node_modules"
}
