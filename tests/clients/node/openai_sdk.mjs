// OpenAI's SDK: chat completions, tools by hand, retries.
import OpenAI from "openai";
import {
  BASE_URL, FUNCTION, KEY, MODEL, PARALLEL, PLAIN, RETRY, RUN, STREAM, TOOLS, heard, lookUp, play,
} from "./playing.mjs";

// guide
const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY });
const named = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, defaultHeaders: RUN });
// end

const user = (content) => [{ role: "user", content }];
const said = async (which, text) =>
  (await which.chat.completions.create({ model: MODEL, messages: user(text) })).choices[0].message.content;

async function* pieces() {
  const chunks = await client.chat.completions.create({ model: MODEL, messages: user(STREAM), stream: true });
  for await (const chunk of chunks) yield chunk.choices[0]?.delta.content;
}

async function loop(text) {
  const messages = user(text);
  for (;;) {
    const tools = [{ type: "function", function: FUNCTION }];
    const { message } = (await client.chat.completions.create({ model: MODEL, messages, tools })).choices[0];
    if (!message.tool_calls) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const content = lookUp(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

await play({
  plain: () => said(named, PLAIN),
  stream: () => heard(pieces()),
  tools: () => loop(TOOLS),
  parallel: () => loop(PARALLEL),
  retry: () => said(client, RETRY),
  embed: async () => (await client.embeddings.create({ model: MODEL, input: ["an order"] })).data[0].embedding,
});
