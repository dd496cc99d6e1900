"""Remember two facts, recall them for a question, answer from their attention states."""

from inferscale_memory import LocalEngine, Memory

if __name__ == "__main__":
    with LocalEngine("demo") as engine, Memory(engine) as memory:
        memory.add(["Alice's dog is called Rex.", "Alice is allergic to peanuts."], user_id="alice")
        memory.flush()
        handle = memory.recall("What is my dog called?", user_id="alice")
        system = {"role": "system", "content": f"You are a helpful assistant. {handle}"}
        question = {"role": "user", "content": "What is my dog called?"}
        reply = engine.chat([system, question], user_id="alice", max_tokens=20, temperature=0)
        print(reply["choices"][0]["message"]["content"], reply["kv"])
