// Runs before the first paint, so that nobody who chose the dark sees a flash of light.
document.documentElement.dataset.theme = localStorage.getItem('turnstream.theme') ?? 'auto'
