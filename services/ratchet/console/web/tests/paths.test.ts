import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { paths as policies } from "../src/views/policies/paths.ts";
import { paths as rollouts } from "../src/views/rollouts/paths.ts";

const RATCHET = new URL("../../../../../.venv/bin/ratchet", import.meta.url);
const ACTS = ["approve", "pause", "resume", "promote", "rollback", "revert", "start"];

interface Operation {
  readonly parameters?: readonly { readonly name: string; readonly in: string }[];
}

/** `GET /v1/...` of every service, as pages ask for it, with the names of its query's parameters. */
const offered = ["console", "coordinator", "deployer"].flatMap((service) => {
  const document = execFileSync(fileURLToPath(RATCHET), ["contract", "openapi", service], { encoding: "utf8", maxBuffer: 2 ** 24 });
  const { paths } = JSON.parse(document) as { paths: Record<string, Record<string, Operation>> };
  const before = service === "console" ? "" : `/${service}`;
  return Object.entries(paths).flatMap(([path, operations]) => Object.entries(operations).map(([method, operation]) => ({
    method: method.toUpperCase(),
    path: new RegExp(`^${before}${path.replaceAll(/\{[^}]+\}/g, "[^/]+")}$`),
    query: (operation.parameters ?? []).filter((one) => one.in === "query").map((one) => one.name),
  })));
});

function check(method: string, asked: string): void {
  const [path = "", query = ""] = asked.split("?");
  const operation = offered.find((one) => one.method === method && one.path.test(path)) ?? assert.fail(`no service answers ${method} ${path}`);
  for (const name of new URLSearchParams(query).keys()) assert.ok(operation.query.includes(name), `${asked} has the parameter ${name}, which is unknown`);
}

test("what pages of rollouts ask for is in the contract", () => {
  for (const path of [rollouts.all, rollouts.newest("a"), rollouts.audit("a"), rollouts.policies("a"), rollouts.past("a"), rollouts.history("a", "b"), rollouts.failures("a", "b")]) check("GET", path);
  for (const act of ACTS) check("POST", rollouts.act("a", act));
});

test("what pages of policies ask for is in the contract", () => {
  for (const path of [policies.all, policies.lineage("a", 1, 50), policies.prompts("a", 1)]) check("GET", path);
});

test("a path that is not in the contract is noticed", () => {
  assert.throws(() => check("GET", "/v1/rollouts/a/pasts"));
  assert.throws(() => check("POST", rollouts.audit("a")));
  assert.throws(() => check("GET", `${rollouts.audit("a")}?role=a`));
});
