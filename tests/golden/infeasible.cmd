plan mllm-72b-96 search.gpus=8
