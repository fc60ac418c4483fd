runs show --runs @RUNS@ 2
