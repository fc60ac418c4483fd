plan --json mllm-tiny-local
