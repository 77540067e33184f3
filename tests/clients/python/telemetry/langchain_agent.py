"""An agent of LangChain, by the instrumentation that `INSTRUMENTATION` names."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from sending import ASKED, KEY, MODEL, PROVIDER, SYSTEM, exporting, flush, look_up

exporting()
if os.environ["INSTRUMENTATION"] == "traceloop":
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor
elif os.environ["INSTRUMENTATION"] == "openinference":
    from openinference.instrumentation.langchain import LangChainInstrumentor as LangchainInstrumentor
else:
    from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor as LangchainInstrumentor

LangchainInstrumentor().instrument()
model = ChatOpenAI(model=MODEL, base_url=f"{PROVIDER}/v1", api_key=KEY, temperature=0.5)
agent = create_agent(model, [look_up], system_prompt=SYSTEM, name="clerk")
agent.invoke({"messages": [{"role": "user", "content": ASKED}]})
flush()
