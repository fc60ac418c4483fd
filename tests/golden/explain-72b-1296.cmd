simulate --no-runs --explain mllm-72b-1296
