compare --runs @RUNS@ 1 2
