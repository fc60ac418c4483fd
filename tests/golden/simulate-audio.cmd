simulate --no-runs mllm-audio-64
