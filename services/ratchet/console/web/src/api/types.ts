// The contract's types, by their names there. generated/ is made from contracts/http by `npm run build`.

import type { components as Coordinator } from "../../generated/coordinator.ts";
import type { components as Deployer } from "../../generated/deployer.ts";
import type { components as Console } from "../../generated/console.ts";
import type { components as Workflows } from "../../generated/workflows.ts";
import type { components as Analyst } from "../../generated/analyst.ts";

export type ConsoleSchemas = Console["schemas"];
export type CoordinatorSchemas = Coordinator["schemas"];
export type DeployerSchemas = Deployer["schemas"];
export type WorkflowsSchemas = Workflows["schemas"];
export type AnalystSchemas = Analyst["schemas"];

export type Session = ConsoleSchemas["SessionOut"];
export type Scope = "view" | "annotate" | "train" | "operate" | "infer";
export type Loop = ConsoleSchemas["LoopOut"];
export type Drift = ConsoleSchemas["DriftOut"];
export type Hint = ConsoleSchemas["HintOut"];
export type Alerts = ConsoleSchemas["AlertsOut"];
export type Receiver = ConsoleSchemas["ReceiverOut"];
export type Attention = ConsoleSchemas["AttentionOut"];
export type Rollout = DeployerSchemas["RolloutOut"];
export type Model = CoordinatorSchemas["ModelOut"];
export type Audit = DeployerSchemas["AuditOut"];
export type RolePolicies = DeployerSchemas["RolePoliciesOut"];
export type Trail = DeployerSchemas["TrailOut"];
export type RolloutHistory = ConsoleSchemas["RolloutHistoryOut"];
export type DecisionPoint = ConsoleSchemas["DecisionPointOut"];
export type TrajectoryBrief = ConsoleSchemas["TrajectoryBrief"];
