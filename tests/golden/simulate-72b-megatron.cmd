simulate --no-runs -s megatron-lm mllm-72b-1296
