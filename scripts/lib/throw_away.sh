# shellcheck shell=bash disable=SC2034,SC2154 # Shares variables with the scripts that source it.
# Owns the life of throw-away servers: the folder of a run, starting, stopping, and sweeping up after
# runs that were killed. What a database's server is and how it is called is in lib/servers.sh, which
# must be sourced before; who starts which servers, for whom, is up to the script that sources this.
#
# Such a script must set a trap on EXIT that calls `stop_servers` and `remove_folder "$folder"`.

start_limit_seconds=60
stop_limit_seconds=10
port_tries=10
restart_tries=3
folder_prefix=outbox-servers.

folder=
declare -A server_pid=() stage=()

# Nobody may be reading any more when the terminal is gone; that must not stop the cleaning up.
say() { printf '%s\n' "$*" >&2 || true; }

# Prints what the kernel knows of a process from its state on; nothing when it is gone.
process_state() { # PID
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  echo "${stat##*) }"
}

# Whether a child of this script still runs. After a long run, the id of one that does not may belong
# to somebody else, who must not be signalled.
alive() { # PID
  [[ $(process_state "$1") == [!Z]" $$ "* ]]
}

# ---------------------------------------------------------------- the folder of a run

# A process id is reused sooner or later; together with the time of its start it is not.
process_start_time() { # PID
  process_state "$1" | cut -d ' ' -f 20
}

# The owner file goes last: whatever is interrupted before that, the next run can finish.
remove_folder() { # FOLDER
  rm -rf -- "${1:?}"/*/ && rm -rf -- "$1"
}

# A run that was killed with -9 leaves its folder behind, and in rare cases a server that was just
# being started. Servers live in their data folders, which tells them from all other processes.
sweep_dead_runs() {
  local dead owner start process
  for dead in "${TMPDIR:-/tmp}/$folder_prefix"??????; do
    [[ -d $dead && ! -L $dead && -O $dead && -f $dead/owner ]] || continue
    { read -r owner start <"$dead/owner"; } 2>/dev/null || continue
    if [[ $start == "$(process_start_time "$owner")" ]]; then continue; fi
    for process in /proc/[0-9]*; do
      if [[ $(readlink "$process/cwd") == "$dead"/*/data* ]]; then kill -KILL "${process##*/}"; fi
    done 2>/dev/null
    remove_folder "$dead" || true
  done
}

make_folder() {
  local owner
  owner="$$ $(process_start_time $$)"
  folder=$(mktemp -d "${TMPDIR:-/tmp}/${folder_prefix}XXXXXX")
  echo "$owner" >"$folder/owner"
  # The servers' accounts must reach their own folders inside.
  chmod 711 "$folder"
}

# ---------------------------------------------------------------- stopping

# Every process started here leads its own session, so that a signal to its group reaches what it has
# started as well, and the terminal's Ctrl-C reaches this script only.
signal_group() { # SIGNAL PID
  kill -"$1" -- "-$2" 2>/dev/null || true
}

wait_until_gone() { # SECONDS PID…
  local deadline=$((SECONDS + $1)) pid
  shift
  for pid in "$@"; do
    while alive "$pid" && ((SECONDS < deadline)); do sleep 0.02; done
  done
}

last_words() { # DATABASE WHAT
  say "${0##*/}: $1 $2; the end of its log:"
  tail -n 100 "$folder/$1.log" >&2 || true
}

# A server that crashes by itself takes the reason with it when its folder goes.
report_crashes() {
  local database
  for database in "${!server_pid[@]}"; do
    if [[ ${stage[$database]} == serving ]] && ! alive "${server_pid[$database]}"; then
      last_words "$database" "has crashed by itself"
    fi
  done
}

# First the servers alone, so that they can put their own affairs in order; then all that is left. No
# server gets to write anything down: to its data this is a crash.
stop_servers() {
  local database pid
  local -a running=()
  for database in "${!server_pid[@]}"; do
    pid=${server_pid[$database]}
    if ! alive "$pid"; then continue; fi
    running+=("$pid")
    kill -"$(stop_signal "$database" "${stage[$database]}")" "$pid"
    stage[$database]=stopped
  done
  wait_until_gone "$stop_limit_seconds" "${running[@]}"
  for pid in "${running[@]}"; do signal_group KILL "$pid"; done
  # Bash reports each process that it sees die; waiting makes it do so here, where nobody listens.
  if ((${#running[@]})); then wait "${running[@]}" || true; fi
}

# Kills every process of every server. PostgreSQL's lead sessions of their own; one that is still there
# would keep the next server from starting.
crash_servers() {
  local database pid deadline=$((SECONDS + stop_limit_seconds))
  local -a children=()
  for database in "${!server_pid[@]}"; do
    pid=${server_pid[$database]}
    if ! alive "$pid"; then continue; fi
    stage[$database]=stopped
    read -r -a children <"/proc/$pid/task/$pid/children" || true
    kill -KILL "$pid" "${children[@]}" || true
    # Bash reports each process that it sees die; waiting makes it do so here, where nobody listens.
    wait "$pid" || true
    for pid in "${children[@]}"; do
      while [[ $(process_state "$pid") == [!Z]* ]] && ((SECONDS < deadline)); do sleep 0.02; done
    done
  done
  stop_servers
}

# Asks one server to end, and gives it time to put its affairs in order.
shut_down() { # DATABASE
  if alive "${server_pid[$1]}"; then
    stage[$1]=stopped
    kill -"$(shutdown_signal "$1")" "${server_pid[$1]}"
    wait_until_gone "$stop_limit_seconds" "${server_pid[$1]}"
  fi
}

# ---------------------------------------------------------------- starting

declare -A account=() password=() port=() tries=() version=() settled=()

# Starts a program of a server in the background: as its account, in the folder, and such that the
# kernel stops it when this script dies. That only works for direct children which have already
# changed their account, hence no daemons and this order. Each has a TMPDIR of its own because MariaDB,
# when it starts, deletes the temporary tables of every other server that shares one.
run_server_program() { # DATABASE initialising|serving PROGRAM ARGUMENTS…
  local database=$1
  stage[$database]=$2
  shift 2
  local -a as_account=(setpriv --pdeathsig "$(stop_signal "$database" "${stage[$database]}")")
  if [[ ${account[$database]} != self ]]; then
    as_account+=(--reuid "${account[$database]}" --regid "$(id -g "${account[$database]}")" --clear-groups)
  fi
  "${as_account[@]}" setsid env -C "$folder" LC_ALL=C TMPDIR="$folder/$database" \
    "$@" >"$folder/$database.log" 2>&1 </dev/null &
  server_pid[$database]=$!
}

start_failed() { # DATABASE WHAT
  last_words "$@"
  stage[$1]=stopped
  exit 1
}

begin() { # DATABASE
  local database=$1 initialise serve
  # PostgreSQL and MariaDB refuse to run as root. What was unpacked into root's cache must not change
  # its account before it has started: nobody else can read it.
  account[$database]=self
  if ((EUID == 0)) && [[ $database == postgres || $database == mariadb ]]; then
    account[$database]=nobody
  fi
  : "${password[$database]:=$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')}"
  mkdir -m 700 "$folder/$database"
  write_secrets "$folder/$database" "${password[$database]}"
  if [[ ${account[$database]} != self ]]; then chown -R "${account[$database]}:" "$folder/$database"; fi
  "${database}_commands" "$folder/$database" 0
  run_server_program "$database" initialising "${initialise[@]}"
  tries[$database]=0
}

# No port is known to be free until a server has it, so one is guessed, from below the range in which
# the kernel picks ports for outgoing connections, and another when the server finds it taken. One that
# was ready before comes back on its port, for that is where its clients look for it.
serve() { # DATABASE
  local database=$1 initialise serve
  if [[ ! ${settled[$database]:-} ]]; then
    port[$database]=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  fi
  tries[$database]=$((tries[$database] + 1))
  "${database}_commands" "$folder/$database" "${port[$database]}"
  run_server_program "$database" serving "${serve[@]}"
}

# Asks a server for its version, which it can tell once it is ready. Only a server that has said so
# itself owns the port; before that, another one might answer there. PostgreSQL proves it by knowing
# the password.
ask_version() { # DATABASE
  [[ $1 == postgres || $1 == pgbouncer ]] || grep -q 'ready for connections' "$folder/$1.log" || return 0
  version[$1]=$("$1_version" "$(server_url "$1" "${port[$1]}" "${password[$1]}")") || true
}

# Takes a server one step on its way, if it has finished the last one.
advance() { # DATABASE
  local database=$1
  if alive "${server_pid[$database]}"; then
    if [[ ${stage[$database]} == serving ]]; then ask_version "$database"; fi
    return
  fi
  if [[ ${stage[$database]} == initialising ]]; then
    wait "${server_pid[$database]}" || start_failed "$database" "could not be initialised"
  elif [[ ${settled[$database]:-} ]] && ((tries[$database] < restart_tries)); then
    # Some crash now and then over what a crash has left, and come up the next time.
    last_words "$database" "died while it started again"
  elif ! grep -q 'Address already in use' "$folder/$database.log" ||
    ((tries[$database] >= port_tries)); then
    start_failed "$database" "did not start"
  fi
  serve "$database"
}

start_servers() { # DATABASE…
  local database
  for database in "$@"; do begin "$database"; done
  await_servers "$@"
}

# Starts a pooler before the PostgreSQL that was started.
start_pooler() {
  pooled_port=${port[postgres]}
  password[pgbouncer]=${password[postgres]}
  start_servers pgbouncer
}

# Starts a server that was stopped: the same data, the same port.
start_again() { # DATABASE
  settled[$1]=yes
  tries[$1]=0
  unset "version[$1]"
  serve "$1"
  await_servers "$1"
}

await_servers() { # DATABASE…
  local deadline=$((SECONDS + start_limit_seconds)) database waiting=1
  while ((waiting)); do
    waiting=0
    for database in "$@"; do
      if [[ ${version[$database]:-} ]]; then continue; fi
      advance "$database"
      waiting=1
      ((SECONDS < deadline)) ||
        start_failed "$database" "was not ready after $start_limit_seconds seconds"
    done
    sleep 0.02
  done
}
