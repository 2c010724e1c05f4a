# shellcheck shell=bash disable=SC2034 # The variables it sets are read by the scripts that source it.
# Owns what the scripts know about each database: its name, where its server programs are, how a
# throw-away server of it is initialised and served, and how its version is asked for.
# It starts and stops nothing: lib/throw_away.sh does that. To add a database, add its name here
# and the functions that carry its name.

all_databases=(postgres mariadb mysql sqlite)
# What sinks publish to, by the names of their features. Tests start these themselves.
all_brokers=(nats rabbitmq redis mqtt)

# The administrator account of every server that is started here.
administrator=outbox
# Where the PostgreSQL is that a pooler stands before: lib/throw_away.sh says.
pooled_port=

die() { # EXIT_CODE MESSAGE…
  local code=$1
  shift
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit "$code"
}

# Sets the array `databases` to the names in a comma-separated LIST, in the order of `all_databases`
# and each once, so that "sqlite,postgres" and "postgres,sqlite,postgres" are the same run.
choose_databases() { # LIST
  local name names allowed
  databases=()
  allowed=$(IFS=,; echo "${all_databases[*]}")
  [[ $1 ]] || die 2 "--db needs at least one of: ${allowed//,/, }"
  IFS=, read -ra names <<<"$1"
  for name in "${names[@]}"; do
    [[ ,$allowed, == *,"$name",* ]] ||
      die 2 "there is no database '$name' in '--db $1'; allowed are: ${allowed//,/, }"
  done
  for name in "${all_databases[@]}"; do
    if [[ ,$1, == *,"$name",* ]]; then databases+=("$name"); fi
  done
}

# The environment variable that holds a database's address, e.g. OUTBOX_TEST_POSTGRES_URL.
url_variable() { # DATABASE
  echo "OUTBOX_TEST_${1^^}_URL"
}

# Debian keeps servers in /usr/sbin, which is not on the path of ordinary users.
program() { # NAME
  PATH=$PATH:/usr/sbin type -P "$1"
}

# --- where the server programs are: each prints a place, or fails when there is none ---

# Debian keeps PostgreSQL's programs off the path, one folder per major version: the highest wins,
# unless the user has put one on the path.
find_postgres() {
  local server folder
  while read -r folder; do
    if [[ -x $folder/initdb && -x $folder/postgres && -x $folder/psql ]]; then
      echo "$folder"
      return
    fi
  done < <(
    if server=$(program postgres); then dirname "$(readlink -f "$server")"; fi
    printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
  )
  return 1
}

find_mariadb() {
  program mariadb-install-db >/dev/null && program mariadbd
}

# Real MySQL, and a pgbouncer that knows prepared statements, are not among Debian's ordinary packages:
# scripts/install-servers unpacks them here.
unpacked_cache() {
  echo "${XDG_CACHE_HOME:-${HOME:?}/.cache}/outbox"
}

find_unpacked() { # NAME
  local folder
  folder=$(printf '%s\n' "$(unpacked_cache)/$1"-[0-9]* | sort -rV | head -n 1)
  [[ -d $folder ]] && echo "$folder"
}

find_mysql() { find_unpacked mysql; }
find_pgbouncer() { find_unpacked pgbouncer; }

find_nats() { program nats-server; }
find_redis() { program redis-server; }
find_mqtt() { program mosquitto; }
find_rabbitmq() { [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] && echo /usr/lib/rabbitmq/bin/rabbitmq-server; }

# Prints the brokers whose programs are here, comma-separated.
brokers_here() {
  local broker
  local -a found=()
  for broker in "${all_brokers[@]}"; do
    if "find_$broker" >/dev/null; then found+=("$broker"); fi
  done
  (IFS=,; echo "${found[*]}")
}

# What is unpacked comes with a C library newer than the machine's: only its own loader can start it.
# Sets the array `unpacked`.
unpacked_program() { # FOLDER PROGRAM
  local libraries
  libraries=$(find "$1/lib" "$1/usr/lib" -maxdepth 1 -name '*-linux-gnu*' -type d -printf '%p:' 2>/dev/null || true)
  unpacked=("$(find "$1" -name 'ld-linux*.so*' -print -quit)" --library-path "$libraries" "$1/usr/sbin/$2")
}

# --- how a server is run: each sets `initialise` and `serve`, which run as the server's account in
# --- FOLDER, a folder of that account which holds the files that `write_secrets` made.
# Durability stays at each database's own default, because tests kill servers and look at what is left.

write_secrets() { # FOLDER PASSWORD
  printf '%s\n' "$2" >"$1/password"
  printf '%s\n' >"$1/administrator.sql" \
    "CREATE DATABASE IF NOT EXISTS $administrator;" \
    "CREATE USER IF NOT EXISTS '$administrator'@'%' IDENTIFIED BY '$2';" \
    "GRANT ALL PRIVILEGES ON *.* TO '$administrator'@'%' WITH GRANT OPTION;"
}

postgres_commands() { # FOLDER PORT
  local programs
  programs=$(find_postgres)
  initialise=(
    "$programs/initdb" --pgdata="$1/data" --username="$administrator" --pwfile="$1/password"
    --auth=scram-sha-256 --encoding=UTF8 --no-locale --no-sync
  )
  serve=(
    "$programs/postgres" -D "$1/data" -c listen_addresses=127.0.0.1 -c port="$2"
    -c unix_socket_directories= -c max_connections=300 -c shared_buffers=128MB
    -c max_prepared_transactions=20
  )
}

# What MariaDB and MySQL share. The socket's path is relative to the data folder: an absolute one
# could be longer than the 107 bytes that the kernel takes. The administrator is created by the
# server itself before it listens, so a server that answers is a server that can be used.
mysql_family_options() { # FOLDER PORT
  printf '%s\n' --datadir="$1/data" --bind-address=127.0.0.1 --port="$2" --socket=server.sock \
    --pid-file=server.pid --init-file="$1/administrator.sql" --skip-name-resolve --skip-log-bin \
    --max-connections=300 --performance-schema=OFF --innodb-buffer-pool-size=128M \
    --character-set-server=utf8mb4
}

mariadb_commands() { # FOLDER PORT
  local options
  mapfile -t options < <(mysql_family_options "$@")
  initialise=(
    "$(program mariadb-install-db)" --no-defaults --datadir="$1/data" --skip-test-db
    --skip-name-resolve
  )
  serve=("$(find_mariadb)" --no-defaults "${options[@]}")
}

# MySQL's import and export of files is off because, unlike the others, it may run as root.
mysql_commands() { # FOLDER PORT
  local options mysqld unpacked folder
  mapfile -t options < <(mysql_family_options "$@")
  folder=$(find_mysql)
  unpacked_program "$folder" mysqld
  mysqld=(
    "${unpacked[@]}" --no-defaults --basedir="$folder/usr" --plugin-dir="$folder/usr/lib/mysql/plugin"
    --lc-messages-dir="$folder/usr/share/mysql" --secure-file-priv=NULL
  )
  if ((EUID == 0)); then mysqld+=(--user=root); fi
  initialise=("${mysqld[@]}" --initialize --datadir="$1/data")
  serve=("${mysqld[@]}" "${options[@]}" --mysqlx=OFF)
}

# A pooler before the PostgreSQL at `pooled_port`, with the same password: any two transactions of a
# client may run in different sessions.
pgbouncer_commands() { # FOLDER PORT
  local unpacked
  unpacked_program "$(find_pgbouncer)" pgbouncer
  initialise=(mkdir "$1/data")
  printf '"%s" "%s"\n' "$administrator" "$(<"$1/password")" >"$1/accounts"
  cat >"$1/pgbouncer.ini" <<CONFIG
[databases]
* = host=127.0.0.1 port=$pooled_port
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $2
unix_socket_dir =
auth_type = scram-sha-256
auth_file = $1/accounts
pool_mode = transaction
default_pool_size = 10
max_client_conn = 2000
max_prepared_statements = 200
ignore_startup_parameters = extra_float_digits
server_login_retry = 1
server_idle_timeout = 3
CONFIG
  serve=(env -C "$1/data" "${unpacked[@]}" "$1/pgbouncer.ini")
  if ((EUID == 0)); then
    # It refuses to be root, and nobody else can read what was unpacked into root's cache.
    chown -R nobody: "$1"
    serve+=(--user=nobody)
  fi
}

# The signals that end a server, and its initialisation, at once. PostgreSQL has shared memory to give
# back and processes to take along; the others have neither.
stop_signal() { # DATABASE initialising|serving
  case $1-$2 in
    postgres-initialising) echo TERM ;;
    postgres-serving) echo QUIT ;;
    *) echo KILL ;;
  esac
}

# The signal by which an administrator in a hurry shuts a server down.
shutdown_signal() { # DATABASE
  if [[ $1 == postgres ]]; then echo QUIT; else echo TERM; fi
}

server_url() { # DATABASE PORT PASSWORD
  local account=$administrator:$3@127.0.0.1:$2
  if [[ $1 == postgres || $1 == pgbouncer ]]; then
    echo "postgres://$account/postgres"
  else
    echo "mysql://$account/$administrator"
  fi
}

# --- what version answers at an address: each prints it, or fails when nobody answers ---

postgres_version() { # URL
  local programs version
  if programs=$(find_postgres); then programs+=/; fi
  version=$(PGCONNECT_TIMEOUT=2 "${programs}psql" -XAtqc 'SHOW server_version' "$1" 2>/dev/null) &&
    echo "${version%% *}"
}

# The server's first packet names its version: 5 bytes, then text up to a zero byte. That needs no
# client program, which would have to know every way in which MySQL checks a password. MariaDB puts
# "5.5.5-" in front for the sake of old clients.
mysql_family_version() { # URL
  local version
  [[ $1 =~ ^[a-z]+://([^@/]*@)?([^:/?]+)(:([0-9]+))? ]] || return
  # shellcheck disable=SC2016 # The inner shell is to expand these.
  version=$(timeout 2 bash -c 'exec 3<>"/dev/tcp/$0/$1" && head -c 64 <&3' \
    "${BASH_REMATCH[2]}" "${BASH_REMATCH[4]:-3306}" 2>/dev/null |
    tail -c +6 | tr '\0' '\n' | head -n 1) || return
  version=${version#5.5.5-}
  [[ $version =~ ^[0-9]+(\.[0-9]+)+ ]] && echo "${BASH_REMATCH[0]}"
}

pgbouncer_version() { postgres_version "$@"; }
mariadb_version() { mysql_family_version "$@"; }
mysql_version() { mysql_family_version "$@"; }
