runs list --runs @RUNS@
