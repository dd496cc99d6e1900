"""The vLLM side: the KV connector, the taps that capture, and the local engine that resolves handles."""
