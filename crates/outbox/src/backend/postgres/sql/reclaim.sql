VACUUM (SKIP_LOCKED) {prefix}messages, {prefix}runs
