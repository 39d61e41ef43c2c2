declare const temml: { render(tex: string, element: Element, options: Record<string, unknown>): void }
export default temml
