// Annotation: a queue for the keyboard, pairs in a hidden order, and how far the raters agree.

import { RoleSelect, useRoles } from "../../parts/roles.tsx";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Banner } from "../../ui/resource.tsx";
import { session, whyNot } from "../../api/session.ts";
import { useStore } from "../../store.ts";
import { Agreement } from "./agreement.tsx";
import { Pairs } from "./pairs.tsx";
import { Queue } from "./queue.tsx";

const TABS = [["", "Queue"], ["pairs", "Pairs"], ["agreement", "Agreement"]] as const;

export function AnnotationView({ route }: { route: Route }) {
  useStore(session);
  const tab = route.params["tab"] ?? "";
  const role = route.params["role"] ?? "";
  const roles = useRoles();
  const why = whyNot("annotate");
  const chosen = role === "" ? (roles.length === 1 ? roles[0] : undefined) : role;
  return (
    <Page title="Annotation" lead="What people think of answers: it revises rewards, and teaches preferences.">
      <div class="row">
        <nav class="tabs grow" aria-label="Ways to annotate">
          {TABS.map(([each, name]) => <a key={each} href={href("annotation", { tab: each, role })} aria-current={each === tab ? "page" : undefined}>{name}</a>)}
        </nav>
        <RoleSelect value={role} onValue={(chosen) => navigate(href("annotation", { tab, role: chosen }))} />
      </div>
      {why !== null
        ? <Banner tone="info" title={`Opinions are for those who give them. ${why}`}><p>Trajectories can be read <a href={href("trajectories", { role })}>in their list</a>.</p></Banner>
        : tab === "" ? <Queue key={role} role={role} />
          : chosen === undefined ? <Panel title={tab === "pairs" ? "Pairs" : "Agreement"}><Empty>Choose a role: answers and raters are compared within one.</Empty></Panel>
            : tab === "pairs" ? <Pairs key={chosen} role={chosen} /> : <Agreement role={chosen} />}
    </Page>
  );
}

/** `/v1/annotation/<what>`, of one role or of all. */
export function annotationPath(what: string, role: string): string {
  return `/v1/annotation/${what}${role === "" ? "" : `?role=${encodeURIComponent(role)}`}`;
}
