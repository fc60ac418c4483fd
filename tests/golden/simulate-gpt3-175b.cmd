simulate --no-runs gpt3-175b-1024
