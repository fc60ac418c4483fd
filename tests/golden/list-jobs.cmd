list jobs --json
