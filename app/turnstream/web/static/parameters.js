// Controls for the parameters of a model, created from the JSON Schemas of their values in GET /api/models.

import { h } from './dom.js'
import { TEXTS } from './texts.js'

const { parameters: texts } = TEXTS

/** Returns labels with controls, filled with `values`, for those `params` of a model that have a control. */
export function controlsOf(params, values) {
  const schemas = Object.fromEntries(params.map(({ name, values: schema }) => [name, schema]))
  const notes = Object.fromEntries(params.map(({ name, description }) => [name, description]))
  return Object.entries(texts.labels).flatMap(([path, label]) => {
    const [name, member] = path.split('.')
    const schema = member ? schemas[name]?.properties?.[member] : schemas[name]
    if (!schema || (path === 'reasoning_effort' && schemas.output_config?.properties?.effort)) return []
    const value = member ? values[name]?.[member] : values[name]
    const control = schema.enum ? choiceOf(schema.enum, value) : numberOf(schema)
    control.setAttribute('aria-label', label)
    control.dataset.param = path
    control.value = value ?? ''
    return [h('label', { title: notes[name] }, label, control)]
  })
}

function choiceOf(options, value) {
  const all = value === undefined || options.includes(value) ? options : [...options, value]
  return h(
    'select',
    {},
    h('option', { value: '' }, texts.standard),
    ...all.map((one) => h('option', { value: one }, one)),
  )
}

function numberOf({ type, minimum, maximum, exclusiveMinimum }) {
  const step = type === 'integer' ? 1 : 'any'
  return h('input', {
    type: 'number',
    min: minimum ?? exclusiveMinimum,
    max: maximum,
    step,
    placeholder: texts.standard,
  })
}

/** Returns `values` with the values of all controls that are not empty. */
export function withControls(values, controls) {
  const read = structuredClone(values)
  for (const control of controls) {
    const [name, member] = control.dataset.param.split('.')
    if (control.value === '') continue
    const value = control.type === 'number' ? Number(control.value) : control.value
    read[name] = member ? { ...read[name], [member]: value } : value
  }
  return read
}

/** Returns `values` without the values that the controls show. */
export function withoutControls(values, controls) {
  const rest = structuredClone(values)
  for (const control of controls) {
    const [name, member] = control.dataset.param.split('.')
    if (member && rest[name]) delete rest[name][member]
    if (!member || (rest[name] && !Object.keys(rest[name]).length)) delete rest[name]
  }
  return rest
}

/**
 * Returns the body of a PATCH that changes `before` to `after`. PATCH merges on two levels, and null removes a member.
 */
export function changesOf(before, after, levels = 2) {
  const changes = {}
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, value] = [before[name], after[name]]
    if (JSON.stringify(old) === JSON.stringify(value)) continue
    const merges = levels > 1 && (name === 'params' || name === 'limits') && old && value
    changes[name] = merges ? changesOf(old, value, 1) : (value ?? null)
  }
  return changes
}
