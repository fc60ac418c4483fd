plan --explain mllm-nano-local
