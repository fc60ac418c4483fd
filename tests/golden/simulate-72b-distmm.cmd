simulate --no-runs -s distmm mllm-72b-1296
