// Lines over time or train steps, with limits and a good range; the figures are a table as well.

import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { instant, measure, tickName } from "../format.ts";
import { Table } from "../ui/table.tsx";
import { domainOf, nearest, scale, type Kind, type Scale } from "./scale.ts";

export interface Series {
  readonly name: string;
  /** x grows; time in milliseconds. */
  readonly points: readonly (readonly [number, number])[];
  /** 1 to 6. */
  readonly colour?: number;
}

export interface Limit {
  readonly name: string;
  readonly value: number;
}

export interface LineChartProps {
  /** What a reader of the page hears: what it shows and of what. */
  readonly title: string;
  readonly series: readonly Series[];
  readonly limits?: readonly Limit[];
  /** Where the lines should be. */
  readonly good?: { readonly low: number | null; readonly high: number | null };
  readonly kind?: "linear" | "log";
  readonly x?: "time" | "linear";
  readonly xName?: string;
  readonly height?: number;
  readonly format?: (value: number) => string;
}

const DASHES = ["", "7 4", "2 4", "10 3 2 3", "4 2", "1 3"];
const ROOM = { left: 56, right: 16, top: 12, bottom: 24 };

export function lineStyle(place: number, colour = place + 1) {
  return { stroke: `var(--series-${((colour - 1) % 6) + 1})`, "stroke-dasharray": DASHES[place % DASHES.length] };
}

export function LineChart(props: LineChartProps) {
  const { title, series, kind = "linear", x = "time", height = 200, limits = [], format = measure } = props;
  const [width, frame] = useWidth();
  const [cursor, setCursor] = useState<number | null>(null);
  const xs = useMemo(() => [...new Set(series.flatMap((one) => one.points.map(([at]) => at)))].sort((a, b) => a - b), [series]);
  if (xs.length === 0) return <p class="muted">No figures yet.</p>;
  const axes = axesOf(props, xs, width, height, kind, x);
  const move = (step: number) => setCursor((at) => Math.max(0, Math.min(xs.length - 1, (at ?? xs.length) + step)));
  const at = cursor === null ? null : (xs[cursor] ?? null);
  return (
    <figure class="chart" ref={frame}>
      <Legend series={series} at={at} x={x} format={format} />
      <svg height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${title}. ${summary(series, limits, format)}`} tabIndex={0}
        onPointerMove={(event) => setCursor(nearest(xs, inverse(axes.x, xs, event.offsetX)))}
        onPointerLeave={() => setCursor(null)} onBlur={() => setCursor(null)}
        onKeyDown={(event) => {
          if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
          event.preventDefault();
          move(event.key === "ArrowLeft" ? -1 : 1);
        }}>
        <GoodBand good={props.good} y={axes.y} domain={axes.yDomain} width={width} />
        <Axes axes={axes} width={width} height={height} x={x} format={format} />
        <Limits limits={limits} y={axes.y} width={width} />
        {series.map((one, place) => <Line key={one.name} series={one} place={place} axes={axes} />)}
        {at !== null && <line class="cursor" x1={axes.x.at(at)} x2={axes.x.at(at)} y1={ROOM.top} y2={height - ROOM.bottom} />}
      </svg>
      <Figures title={title} series={series} xs={xs} x={x} xName={props.xName ?? "Time"} format={format} />
    </figure>
  );
}

interface AxesOf {
  readonly x: Scale;
  readonly y: Scale;
  readonly yDomain: readonly [number, number];
}

function axesOf({ series, limits = [], good }: LineChartProps, xs: readonly number[], width: number, height: number, kind: Kind, x: Kind): AxesOf {
  const values = series.flatMap((one) => one.points.map(([, value]) => value)).concat(limits.map((limit) => limit.value));
  if (good?.low != null) values.push(good.low);
  if (good?.high != null) values.push(good.high);
  const yDomain = domainOf(values, kind);
  const xDomain = domainOf(xs, x === "time" ? "time" : "linear");
  const tight: [number, number] = x === "time" || xs.length < 2 ? xDomain : [xs[0] ?? 0, xs.at(-1) ?? 1];
  const along = scale(x, tight, [ROOM.left, width - ROOM.right], Math.max(2, Math.floor(width / 90)));
  return {
    // Beside a single time there is nothing to name.
    x: x === "time" && xs.length === 1 ? { ...along, ticks: xs } : along,
    y: scale(kind, yDomain, [height - ROOM.bottom, ROOM.top], Math.max(2, Math.floor(height / 40))),
    yDomain,
  };
}

function Line({ series, place, axes }: { series: Series; place: number; axes: AxesOf }) {
  const points = series.points.filter(([, value]) => Number.isFinite(value));
  const path = points.map(([x, y], at) => `${at === 0 ? "M" : "L"}${axes.x.at(x).toFixed(1)} ${axes.y.at(y).toFixed(1)}`).join("");
  const only = points.length === 1 ? points[0] : undefined;
  const style = lineStyle(place, series.colour);
  return only === undefined
    ? <path class="line" d={path} {...style} />
    : <circle cx={axes.x.at(only[0])} cy={axes.y.at(only[1])} r="4" style={{ fill: style.stroke }} />;
}

function GoodBand({ good, y, domain, width }: { good: LineChartProps["good"]; y: Scale; domain: readonly [number, number]; width: number }) {
  if (good === undefined || (good.low === null && good.high === null)) return null;
  const [bottom, top] = [y.at(good.low ?? domain[0]), y.at(good.high ?? domain[1])];
  return <rect class="good-band" x={ROOM.left} width={Math.max(0, width - ROOM.left - ROOM.right)} y={top} height={Math.max(0, bottom - top)} />;
}

function Axes({ axes, width, height, x, format }: { axes: AxesOf; width: number; height: number; x: Kind; format: (value: number) => string }) {
  return (
    <g aria-hidden="true">
      {axes.y.ticks.map((tick) => (
        <g key={tick}>
          <line class="axis" x1={ROOM.left} x2={width - ROOM.right} y1={axes.y.at(tick)} y2={axes.y.at(tick)} />
          <text x={ROOM.left - 8} y={axes.y.at(tick) + 4} text-anchor="end">{format(tick)}</text>
        </g>
      ))}
      {axes.x.ticks.map((tick) => (
        <text key={tick} x={axes.x.at(tick)} y={height - 6} text-anchor="middle">{x === "time" ? tickName(tick) : measure(tick)}</text>
      ))}
    </g>
  );
}

function Limits({ limits, y, width }: { limits: readonly Limit[]; y: Scale; width: number }) {
  return (
    <g aria-hidden="true">
      {limits.map((limit) => (
        <g key={limit.name}>
          <line class="limit" x1={ROOM.left} x2={width - ROOM.right} y1={y.at(limit.value)} y2={y.at(limit.value)} />
          <text class="limit-name" x={width - ROOM.right} y={y.at(limit.value) - 5} text-anchor="end">{limit.name}</text>
        </g>
      ))}
    </g>
  );
}

function Legend({ series, at, x, format }: { series: readonly Series[]; at: number | null; x: Kind; format: (value: number) => string }) {
  return (
    <ul class="legend">
      {series.map((one, place) => {
        const point = at === null ? one.points.at(-1) : one.points[nearest(one.points.map(([each]) => each), at)];
        return (
          <li key={one.name}>
            <svg aria-hidden="true" viewBox="0 0 24 8"><line x1="1" x2="23" y1="4" y2="4" stroke-width="2" {...lineStyle(place, one.colour)} /></svg>
            {one.name} <b>{point === undefined ? "–" : format(point[1])}</b>
          </li>
        );
      })}
      {at !== null && <li>{x === "time" ? instant(new Date(at).toISOString()) : `at ${measure(at)}`}</li>}
    </ul>
  );
}

/** The rows that a table of a long series shows: the last ones, and every so many of the others. */
const ROWS = 200;

function Figures({ title, series, xs, x, xName, format }: {
  title: string; series: readonly Series[]; xs: readonly number[]; x: Kind; xName: string; format: (value: number) => string;
}) {
  const [isOpen, setOpen] = useState(false);
  const id = useId();
  const every = Math.ceil(xs.length / ROWS);
  const rows = isOpen ? xs.filter((_, at) => (xs.length - 1 - at) % every === 0).reverse() : [];
  const known = isOpen ? series.map((one) => new Map(one.points.map(([at, value]) => [at, value]))) : [];
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary id={id}>Figures as a table</summary>
      {isOpen && <Table caption={title} rows={rows} rowKey={(at) => at}
        columns={[
          { name: xName, show: (at) => (x === "time" ? instant(new Date(at).toISOString()) : measure(at)) },
          ...series.map((one, place) => ({ name: one.name, isNumber: true, show: (at: number) => show(known[place]?.get(at), format) })),
        ]} />}
    </details>
  );
}

function show(value: number | undefined, format: (value: number) => string): string {
  return value === undefined ? "" : format(value);
}

function summary(series: readonly Series[], limits: readonly Limit[], format: (value: number) => string): string {
  const last = series.map((one) => `${one.name} is ${format(one.points.at(-1)?.[1] ?? Number.NaN)}`);
  return [...last, ...limits.map((limit) => `${limit.name} is ${format(limit.value)}`)].join(", ") + ". Arrow keys move along it.";
}

function inverse(x: Scale, xs: readonly number[], place: number): number {
  const [first, last] = [xs[0] ?? 0, xs.at(-1) ?? 0];
  const [low, high] = [x.at(first), x.at(last)];
  return high === low ? first : first + ((place - low) / (high - low)) * (last - first);
}

/** The width of an element as it is, so that texts in the chart keep their size. */
function useWidth() {
  const frame = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(640);
  useEffect(() => {
    const element = frame.current;
    if (element === null) return;
    const observer = new ResizeObserver(([entry]) => entry !== undefined && setWidth(Math.max(160, Math.round(entry.contentRect.width))));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [width, frame] as const;
}
