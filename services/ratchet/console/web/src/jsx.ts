// What tags become, in every file: see build.mjs.

export { Fragment, h } from "preact";
