"""Where models come from: folders, GGUF files and the Hub, checked whole or refused in one sentence."""
