// An agent in Node: publishes one trajectory with CloudEvents headers, waits for its reward, and prints it.
//
//   NATS_URL   the broker, by default that of `ratchet up` at its usual port
//   ROLE       the agent's role

import { randomUUID } from "node:crypto";
import { zstdDecompressSync } from "node:zlib";
import { connect, headers } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";

const ROLE = process.env.ROLE ?? "node-agent";
const TRAJECTORIES = `agent.rl.trajectory.v1.${ROLE}`;
const REWARDS = `agent.rl.reward.v1.${ROLE}`;
const PATIENCE_MS = 60_000;

/** One run of the agent on a task. The contract: contracts/schemas/agent-rl/trajectory.v1.schema.json. */
function trajectoryOf(question, answer, startedAt) {
  return {
    trajectory_id: randomUUID(),
    role: ROLE,
    session_id: `node-${process.pid}`,
    agent_id: "node-example",
    start_timestamp: startedAt.toISOString(),
    end_timestamp: new Date().toISOString(),
    turns: [
      {
        turn_id: 1,
        timestamp: startedAt.toISOString(),
        observation: { type: "user_message", content: question },
        action: { type: "response", raw_response: answer },
        result: { success: true },
      },
    ],
    task_context: { task_id: "opening-hours", instructions: "Answer questions about the shop." },
    metadata: { model: "gpt-4o" },
    outcome: { status: "success", verified_by: "environment" },
  };
}

/**
 * All headers that a service would send. None is required; `Nats-Msg-Id` makes sending again harmless. It has to be
 * unique in the stream, which holds all roles: for two minutes the stream drops a second message with the same one.
 */
function cloudEvent(type, id, schema) {
  const event = headers();
  const eventId = `${type}:${ROLE}:${id}`;
  event.set("Nats-Msg-Id", eventId);
  event.set("ce-specversion", "1.0");
  event.set("ce-id", eventId);
  event.set("ce-type", type);
  event.set("ce-source", "urn:example:node-agent");
  event.set("ce-time", new Date().toISOString());
  event.set("ce-dataschema", `urn:ratchet:schema:${schema}`);
  event.set("ce-correlationid", eventId);
  event.set("content-type", "application/json");
  return event;
}

/** The body of a message: JSON, compressed when it is large. */
function bodyOf(message) {
  const compressed = message.headers?.get("content-encoding") === "zstd";
  const bytes = compressed ? zstdDecompressSync(message.data) : message.data;
  return JSON.parse(Buffer.from(bytes).toString("utf8"));
}

/** The first reward of a trajectory, from an instant on. An ordered consumer: it leaves nothing behind. */
async function rewardOf(js, trajectoryId, since) {
  const consumer = await js.consumers.get("RL_REWARDS", {
    filter_subjects: [REWARDS],
    deliver_policy: "by_start_time",
    opt_start_time: since.toISOString(),
  });
  const messages = await consumer.consume();
  const deadline = setTimeout(() => messages.stop(new Error("no reward came in time")), PATIENCE_MS);
  try {
    for await (const message of messages) {
      const reward = bodyOf(message);
      if (reward.trajectory_id === trajectoryId) {
        return reward;
      }
    }
    throw new Error("the broker ended the reading");
  } finally {
    clearTimeout(deadline);
    await messages.close();
  }
}

const connection = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222", name: "node-example" });
try {
  const js = jetstream(connection);
  const began = new Date();
  const trajectory = trajectoryOf("When do you open on Sunday?", "From 10 to 16.", began);
  const event = cloudEvent("agent.rl.trajectory.v1", trajectory.trajectory_id, "trajectory.v1");
  const stored = await js.publish(TRAJECTORIES, JSON.stringify(trajectory), { headers: event });
  if (stored.duplicate) {
    throw new Error(`not stored: ${stored.stream} has another message with the id ${event.get("Nats-Msg-Id")}`);
  }
  console.log(`published ${trajectory.trajectory_id} as message ${stored.seq} of ${stored.stream}`);

  const reward = await rewardOf(js, trajectory.trajectory_id, began);
  console.log(`reward ${reward.total_reward} for ${reward.trajectory_id}, revision ${reward.revision ?? 0}`);
} finally {
  await connection.close();
}
