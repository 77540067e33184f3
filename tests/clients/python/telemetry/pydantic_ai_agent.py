"""An agent of Pydantic AI whose tool asks another agent, by Logfire, which sends to any server of OTLP."""

import logfire
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from sending import ASKED, KEY, MODEL, PROVIDER, SYSTEM, look_up

logfire.configure(send_to_logfire=False, service_name="shop", console=False)
logfire.instrument_pydantic_ai()
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{PROVIDER}/v1", api_key=KEY))
warehouse = Agent(model, name="warehouse", system_prompt="You know where orders are.")
clerk = Agent(model, name="clerk", system_prompt=SYSTEM)


@clerk.tool_plain(name="look_up")
async def ask_the_warehouse(order_id: str) -> str:
    """Says where an order is."""
    await warehouse.run(f"task-plain: where is {order_id}?")
    return look_up(order_id)


clerk.run_sync(ASKED)
logfire.force_flush()
