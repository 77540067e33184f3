// OpenAI's Agents SDK: an agent with its default model, which is one of the Responses API.
import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import {
  BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, heard, lookUp, play,
} from "./playing.mjs";

// guide
const runner = new Runner({ modelProvider: new OpenAIProvider({ baseURL: BASE_URL, apiKey: KEY }) });
const named = new Runner({
  modelProvider: new OpenAIProvider({
    openAIClient: new OpenAI({ baseURL: BASE_URL, apiKey: KEY, defaultHeaders: RUN }),
  }),
});
// end

const look_up = tool({
  name: "look_up",
  description: "Says where an order is.",
  parameters: z.object({ order_id: z.string() }),
  execute: lookUp,
});
const agent = new Agent({ name: "clerk", model: MODEL, tools: [look_up] });
const Trip = z.object({ city: z.string(), days: z.number() });

await play({
  plain: async () => (await named.run(new Agent({ name: "clerk", model: MODEL }), PLAIN)).finalOutput,
  stream: async () => heard((await runner.run(agent, STREAM, { stream: true })).toTextStream()),
  tools: async () => (await runner.run(agent, TOOLS)).finalOutput,
  parallel: async () => (await runner.run(agent, PARALLEL)).finalOutput,
  schema: async () =>
    (await runner.run(new Agent({ name: "clerk", model: MODEL, outputType: Trip }), SCHEMA)).finalOutput,
});
