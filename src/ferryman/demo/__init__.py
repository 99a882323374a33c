"""ChancePay to look at: payments flow, processes are killed and come back, and an audit says what came of it."""
