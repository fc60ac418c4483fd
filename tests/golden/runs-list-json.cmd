runs list --runs @RUNS@ --json
