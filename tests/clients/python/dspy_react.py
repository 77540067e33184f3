"""DSPy: Predict and ReAct, whose prompts and answers are texts with fields."""

from __future__ import annotations

import dspy
from playing import BASE_URL, KEY, MODEL, PLAIN, RUN, TOOLS, look_up, play

# guide
model = dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY, cache=False)
named = dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY, cache=False, extra_headers=RUN)
# each run is named so, since each call is a new prompt: with dspy.context(lm=named): ...
# end

dspy.configure(lm=model)


def plain() -> str:
    with dspy.context(lm=named):
        return dspy.Predict("question -> answer")(question=PLAIN).answer


play(plain=plain, tools=lambda: dspy.ReAct("question -> answer", tools=[look_up])(question=TOOLS).answer)
