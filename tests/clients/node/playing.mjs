// What the scripts of all frameworks share: the address, the tasks, the tool, and the report on standard output.

export const { BASE_URL, KEY, MODEL, PROVIDER } = process.env;
/** The header that names a run, which the task `plain` sends. */
export const RUN = { "x-ratchet-run": "nightly-17" };

export const PLAIN = "task-plain: where are my orders?";
export const STREAM = "task-stream: where are my orders?";
export const TOOLS = "task-tools: look up K47, then K48, then say where they are.";
export const PARALLEL = "task-parallel: look up K47 and K48 at once, then say where they are.";
export const SCHEMA = "task-schema: which city, how many days?";
export const RETRY = "task-retry: where are my orders?";

export const PARAMETERS = {
  type: "object",
  properties: { order_id: { type: "string" } },
  required: ["order_id"],
  additionalProperties: false,
};
export const FUNCTION = { name: "look_up", description: "Says where an order is.", parameters: PARAMETERS };

export const lookUp = ({ order_id }) => `${order_id}-${order_id === "K47" ? "packed" : "shipped"}`;

/** All pieces of a stream; the provider hears of it when the first one is here. */
export async function heard(pieces) {
  let answer = "";
  for await (const piece of pieces) {
    if (piece && !answer) {
      await fetch(`${PROVIDER}/heard`, {
        method: "POST", body: "{}", headers: { "content-type": "application/json" },
      });
    }
    answer += piece ?? "";
  }
  return answer;
}

/** Run the tasks in order; print what each answered, or how it failed. */
export async function play(tasks) {
  const report = {};
  for (const [name, task] of Object.entries(tasks)) {
    try {
      report[name] = { answer: await task() };
    } catch (error) {
      console.error(error);
      report[name] = { failed: `${error.name}: ${error.message}`.slice(0, 400) };
    }
  }
  process.stdout.write(`\nPLAYED ${JSON.stringify(report)}\n`, () => process.exit(0));
}
