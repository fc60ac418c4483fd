simulate --no-runs mllm-9b-96 train.frozen=[encoder,llm]
