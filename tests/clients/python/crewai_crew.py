"""CrewAI: a crew of one agent with a tool."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, heard, look_up, play

# guide
model = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key=KEY)
named = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


def crew(text: str, llm: LLM = model, **options: bool) -> Crew:
    clerk = Agent(role="clerk", goal="find orders", backstory="knows all orders", llm=llm, tools=[tool(look_up)])
    task = Task(description=text, expected_output="where the orders are", agent=clerk)
    return Crew(agents=[clerk], tasks=[task], **options)


play(
    plain=lambda: named.call(PLAIN),
    stream=lambda: heard(chunk.content for chunk in crew(STREAM, stream=True).kickoff()),
    tools=lambda: crew(TOOLS).kickoff().raw,
    parallel=lambda: crew(PARALLEL).kickoff().raw,
)
