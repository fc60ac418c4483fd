compare --runs @RUNS@ 1 twice --json
