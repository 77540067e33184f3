// Pages, panels, facts: the frame of what a view shows.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

let isFirst = true;

/** A view. After a link its heading takes the focus, so that keyboards and readers of the page go on there. */
export function Page({ title, lead, actions, children }: {
  title: string; lead?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${title} · Ratchet`;
    if (!isFirst) heading.current?.focus({ preventScroll: true });
    isFirst = false;
  }, [title]);
  return (
    <main id="content" class="page" tabIndex={-1}>
      <header>
        <h1 ref={heading} tabIndex={-1}>{title}</h1>
        <span class="grow" />
        {actions}
        {lead !== undefined && <p>{lead}</p>}
      </header>
      {children}
    </main>
  );
}

export function Panel({ title, actions, flush = false, id, children }: {
  title: string; actions?: ComponentChildren; flush?: boolean; id?: string; children: ComponentChildren;
}) {
  const heading = useId();
  return (
    <section class="panel" aria-labelledby={heading} id={id} tabIndex={id === undefined ? undefined : -1}>
      <header>
        <h2 id={heading}>{title}</h2>
        <span class="grow" />
        {actions}
      </header>
      <div class={flush ? "body flush" : "body"}>{children}</div>
    </section>
  );
}

/** Names and values; a row whose value is null or undefined is left out. */
export function Facts({ rows }: { rows: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [
        <dt key={`${name}?`}>{name}</dt>,
        <dd key={name}>{value}</dd>,
      ])}
    </dl>
  );
}

export function Figure({ name, value, children }: { name: string; value: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="figure">
      <div class="name">{name}</div>
      <div class="value">{value}</div>
      {children}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

export function Meter({ value, label, tone }: { value: number; label: string; tone?: "warn" }) {
  const part = Math.max(0, Math.min(1, value));
  return (
    <span class="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(part * 100)}>
      <span data-tone={tone} style={{ width: `${part * 100}%` }} />
    </span>
  );
}
