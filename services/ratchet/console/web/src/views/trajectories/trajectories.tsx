// Trajectories: the search with its pages, or one of them.

import type { Route } from "../../route.ts";
import { TrajectoryPage } from "./detail.tsx";
import { TrajectoryList } from "./list.tsx";

export function TrajectoriesView({ route }: { route: Route }) {
  const id = route.parts[1];
  const role = route.params["role"] ?? null;
  return id === undefined
    ? <TrajectoryList route={route} />
    : <TrajectoryPage key={`${role ?? ""} ${id}`} id={id} role={role} from={Number(route.params["from"] ?? 0) || 0} />;
}
