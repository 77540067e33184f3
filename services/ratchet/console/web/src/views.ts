// The views: their place in the navigation, their key, and the component. A new view is one line here.

import type { ComponentType } from "preact";
import type { Route } from "./route.ts";
import type { IconName } from "./ui/icons.tsx";
import { AlignmentView } from "./views/alignment/alignment.tsx";
import { AnnotationView } from "./views/annotation/annotation.tsx";
import { ChangesView } from "./views/changes/changes.tsx";
import { LoopView } from "./views/loop/loop.tsx";
import { PoliciesView } from "./views/policies/policies.tsx";
import { RolloutsView } from "./views/rollouts/rollouts.tsx";
import { StatisticsView } from "./views/statistics/statistics.tsx";
import { TrainingView } from "./views/training/training.tsx";
import { TrajectoriesView } from "./views/trajectories/trajectories.tsx";
import { WorkflowsView } from "./views/workflows/workflows.tsx";

export interface View {
  /** The first part of its route; empty for the home view. */
  readonly path: string;
  readonly title: string;
  readonly icon: IconName;
  /** `g` and this key open it. */
  readonly key: string;
  /** Gets the route, and shows what its further parts name. */
  readonly component: ComponentType<{ route: Route }>;
}

export const VIEWS: readonly View[] = [
  { path: "", title: "Loop", icon: "loop", key: "l", component: LoopView },
  { path: "rollouts", title: "Rollouts", icon: "rollout", key: "r", component: RolloutsView },
  { path: "trajectories", title: "Trajectories", icon: "trajectory", key: "t", component: TrajectoriesView },
  { path: "changes", title: "What to change", icon: "reward", key: "c", component: ChangesView },
  { path: "workflows", title: "Workflows", icon: "workflow", key: "w", component: WorkflowsView },
  { path: "statistics", title: "Statistics", icon: "chart", key: "s", component: StatisticsView },
  { path: "annotation", title: "Annotation", icon: "annotate", key: "a", component: AnnotationView },
  { path: "training", title: "Training", icon: "training", key: "j", component: TrainingView },
  { path: "alignment", title: "Alignment", icon: "panel", key: "m", component: AlignmentView },
  { path: "policies", title: "Policies", icon: "policy", key: "p", component: PoliciesView },
];
