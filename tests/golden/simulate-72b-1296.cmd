simulate --no-runs mllm-72b-1296
