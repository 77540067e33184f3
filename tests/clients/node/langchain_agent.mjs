// LangChain.js: createAgent.
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";
import { BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, heard, lookUp, play } from "./playing.mjs";

// guide
const model = new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: BASE_URL } });
const named = new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: BASE_URL, defaultHeaders: RUN } });
// end

const look_up = tool(lookUp, {
  name: "look_up",
  description: "Says where an order is.",
  schema: z.object({ order_id: z.string() }),
});
const agent = createAgent({ model, tools: [look_up] });
const asked = (content) => ({ messages: [{ role: "user", content }] });

async function* pieces() {
  for await (const [chunk] of await agent.stream(asked(STREAM), { streamMode: "messages" })) yield chunk.text;
}

const loop = async (text) => (await agent.invoke(asked(text))).messages.at(-1).text;

await play({
  plain: async () => (await named.invoke(PLAIN)).text,
  stream: () => heard(pieces()),
  tools: () => loop(TOOLS),
  parallel: () => loop(PARALLEL),
});
