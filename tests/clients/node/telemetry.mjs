// Vercel's AI SDK with its telemetry, in today's conventions or in its own (`LEGACY`), sent as any application does.
import { createOpenAI } from "@ai-sdk/openai";
import { LegacyOpenTelemetry, OpenTelemetry } from "@ai-sdk/otel";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { generateText, registerTelemetry, stepCountIs, tool } from "ai";
import { z } from "zod";

const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ "service.name": "shop" }),
  spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())],
});
provider.register();
registerTelemetry(process.env.LEGACY ? new LegacyOpenTelemetry() : new OpenTelemetry());

const openai = createOpenAI({ baseURL: `${process.env.PROVIDER}/v1`, apiKey: "a-key" });
const look_up = tool({
  description: "Says where an order is.",
  inputSchema: z.object({ order_id: z.string() }),
  execute: async ({ order_id }) => `${order_id}-${order_id === "K47" ? "packed" : "shipped"}`,
});
await generateText({
  model: openai.chat("gpt-4.1-mini"),
  instructions: "You answer customers of a shop.",
  prompt: "task-parallel: look up K47 and K48 at once, then say where they are.",
  tools: { look_up },
  stopWhen: stepCountIs(5),
  temperature: 0.5,
  telemetry: { functionId: "clerk" },
});
await provider.forceFlush();
