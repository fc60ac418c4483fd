plan --explain mllm-72b-1296
