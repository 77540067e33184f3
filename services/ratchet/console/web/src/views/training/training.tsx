// Training: the jobs, one of them, two of them beside each other, or the form that starts one.

import type { Route } from "../../route.ts";
import { ComparePage } from "./compare.tsx";
import { JobPage } from "./job.tsx";
import { JobList } from "./list.tsx";
import { StartPage } from "./start.tsx";

export function TrainingView({ route }: { route: Route }) {
  const { one, other, start } = route.params;
  const id = route.parts[1];
  if (id !== undefined) return <JobPage key={id} id={id} tab={route.params["tab"] ?? ""} />;
  if (one !== undefined && other !== undefined) return <ComparePage one={one} other={other} />;
  if (start !== undefined) return <StartPage key={JSON.stringify(route.params)} params={route.params} />;
  return <JobList route={route} />;
}
