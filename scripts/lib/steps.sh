# shellcheck shell=bash
# Owns how a script runs its steps: each under its name, timed, and listed in a summary at the end.
# Nothing else may be known about what the steps do.

steps_summary=()
steps_failed=0
# "yes" runs the remaining steps although one has failed, for runs that nobody watches.
steps_keep_going=no
# What the summary ends with.
steps_footer=

seconds_since() { # EPOCHREALTIME
  local tenths=$(((${EPOCHREALTIME/[.,]/} - ${1/[.,]/}) / 100000))
  printf '%d.%d s' $((tenths / 10)) $((tenths % 10))
}

# Runs a command; a failure ends the script with the command's exit code, after the summary.
step() { # NAME COMMAND…
  local name=$1 began=$EPOCHREALTIME status=0
  shift
  printf '\n=== %s: %s\n' "$name" "$*"
  "$@" || status=$?
  if ((status == 0)); then
    steps_summary+=("$(printf 'ok      %10s  %s' "$(seconds_since "$began")" "$name")")
    return
  fi
  steps_failed=$status
  steps_summary+=("$(printf 'FAILED  %10s  %s (exit code %d)' "$(seconds_since "$began")" "$name" "$status")")
  [[ $steps_keep_going == yes ]] || finish_steps
}

# Records a step that cannot run here, so that the summary does not pass over it in silence.
skip_step() { # NAME REASON
  printf '\n=== %s: SKIPPED: %s\n' "$1" "$2"
  steps_summary+=("$(printf 'SKIPPED %10s  %s: %s' - "$1" "$2")")
}

# Prints the summary and ends the script.
finish_steps() {
  printf '\n=== summary\n'
  printf '%s\n' "${steps_summary[@]}"
  if [[ $steps_footer ]]; then printf '\n%s\n' "$steps_footer"; fi
  exit "$steps_failed"
}
