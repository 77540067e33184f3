// Fields with their labels, hints and what is wrong with them.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { fromField, toField } from "../format.ts";

/** Attributes that a field of text may have. */
interface Attributes {
  type?: "text" | "search" | "password" | "number" | "datetime-local";
  placeholder?: string;
  autocomplete?: string;
  spellcheck?: boolean;
  disabled?: boolean;
  required?: boolean;
  maxLength?: number;
  min?: number;
  max?: number;
  step?: number | "any";
  rows?: number;
}

/** Values, those with a text of their own beside it. */
type Options = readonly (string | readonly [value: string, text: string])[];

interface Described {
  label: string;
  hint?: ComponentChildren;
  wrong?: string | null;
}

function Frame({ id, label, hint, wrong, children }: Described & { id: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {hint !== undefined && <span class="hint" id={`${id}-hint`}>{hint}</span>}
      {wrong !== null && wrong !== undefined && <span class="wrong" id={`${id}-wrong`} role="alert">{wrong}</span>}
    </div>
  );
}

function described(id: string, { hint, wrong }: Described) {
  const ids = [hint !== undefined && `${id}-hint`, wrong != null && `${id}-wrong`].filter(Boolean).join(" ");
  return { id, "aria-describedby": ids === "" ? undefined : ids, "aria-invalid": wrong != null ? (true as const) : undefined };
}

/** `suggested`: values to choose from beside any other text. */
export function TextField({ label, hint, wrong, value, onValue, suggested, ...rest }: Described & Attributes & { value: string; onValue: (value: string) => void; suggested?: Options }) {
  const id = useId();
  const about = { label, hint, wrong: wrong ?? null };
  return (
    <Frame id={id} {...about}>
      <input type="text" list={suggested && `${id}-list`} {...(rest as { type?: "text" })} {...described(id, about)} value={value} onInput={(event) => onValue(event.currentTarget.value)} />
      {suggested && <datalist id={`${id}-list`}>{optionsOf(suggested)}</datalist>}
    </Frame>
  );
}

/** An instant, in the reader's time zone. */
export function InstantField({ label, value, onValue }: { label: string; value: string; onValue: (value: string) => void }) {
  return <TextField label={label} type="datetime-local" value={toField(value)} onValue={(text) => onValue(fromField(text))} />;
}

export function TextArea({ label, hint, wrong, value, onValue, ...rest }: Described & Omit<Attributes, "type"> & { value: string; onValue: (value: string) => void }) {
  const id = useId();
  const about = { label, hint, wrong: wrong ?? null };
  return (
    <Frame id={id} {...about}>
      <textarea {...rest} {...described(id, about)} value={value} onInput={(event) => onValue(event.currentTarget.value)} />
    </Frame>
  );
}

export function Select({ label, hint, wrong, value, onValue, options }: Described & {
  value: string; onValue: (value: string) => void; options: Options;
}) {
  const id = useId();
  const about = { label, hint, wrong: wrong ?? null };
  return (
    <Frame id={id} {...about}>
      <select {...described(id, about)} value={value} onChange={(event) => onValue(event.currentTarget.value)}>
        {optionsOf(options)}
      </select>
    </Frame>
  );
}

function optionsOf(options: Options) {
  return options.map((one) => (typeof one === "string" ? [one, one] : one)).map(([value, text]) => <option key={value} value={value}>{text}</option>);
}

export function Tick({ checked, onChecked, children }: { checked: boolean; onChecked: (checked: boolean) => void; children: ComponentChildren }) {
  const id = useId();
  return (
    <div class="tick">
      <input type="checkbox" id={id} checked={checked} onChange={(event) => onChecked(event.currentTarget.checked)} />
      <label for={id}>{children}</label>
    </div>
  );
}
