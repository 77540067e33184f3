// Vercel's AI SDK: the model that `openai(model)` means, which is one of the Responses API.
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, heard, lookUp, play,
} from "./playing.mjs";

// guide
const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const named = createOpenAI({ baseURL: BASE_URL, apiKey: KEY, headers: RUN });
// end

const look_up = tool({
  description: "Says where an order is.",
  inputSchema: z.object({ order_id: z.string() }),
  execute: lookUp,
});
const model = openai(MODEL);
const loop = async (prompt) =>
  (await generateText({ model, prompt, tools: { look_up }, stopWhen: stepCountIs(5) })).text;
const schema = z.object({ city: z.string(), days: z.number() });

await play({
  plain: async () => (await generateText({ model: named(MODEL), prompt: PLAIN })).text,
  stream: () => heard(streamText({ model, prompt: STREAM }).textStream),
  tools: () => loop(TOOLS),
  parallel: () => loop(PARALLEL),
  schema: async () => (await generateText({ model, prompt: SCHEMA, output: Output.object({ schema }) })).output,
});
