// The suite imports a function of Node 22, for a command that is not used here.
import { register } from 'node:module'

const shim = "export * from 'node:fs'; export const globSync = () => []"
const hook = `export const resolve = (name, context, next) =>
  name === 'fs' && context.parentURL.includes('/conformance/')
    ? { url: ${JSON.stringify(`data:text/javascript,${encodeURIComponent(shim)}`)}, format: 'module', shortCircuit: true }
    : next(name, context)`
register(`data:text/javascript,${encodeURIComponent(hook)}`)
