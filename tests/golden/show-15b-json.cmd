show mllm-15b-96 --json --no-search
